"""The weather of the demo, hour by hour, and what it does to flights.

observations.py  what is told, and when      cells.py    wind and visibility, by bands
job.py           the Spark job over both     source.py   the same, counted from the files alone
                 topics                      picture.py  its part of the page
"""
