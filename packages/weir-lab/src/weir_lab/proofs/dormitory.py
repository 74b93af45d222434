"""What weir claims of the paper's experiment (SmartDep §3): a dormitory, and its records."""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, bench


def _seconds(place: int, side: int) -> Figure:
    """Return the response time of a side in one of the rounds."""
    return Figure(f"rounds.{place}.rows.{side}.result.seconds")


OF_DORMITORIES = (
    bench(
        "compare-dormitory",
        "1,000 to 8,000 locks that report within a second, each record committed to the same "
        "PostgreSQL: by handlers behind weir, by servers that the locks ask directly, by consumers "
        "behind ActiveMQ; seconds are to the last reply, recorded are rows of records sent",
        "compare --shape dormitory --peer direct,activemq --devices 1000,2000,4000,6000,8000",
        {
            "weir recorded": Figure("rounds.*.rows.0.result.share_recorded"),
            "direct recorded": Figure("rounds.*.rows.1.result.share_recorded"),
            "activemq recorded": Figure("rounds.*.rows.2.result.share_recorded"),
            "weir seconds, 4,000 locks": _seconds(2, 0),
            "direct seconds, 4,000 locks": _seconds(2, 1),
            "activemq seconds, 4,000 locks": _seconds(2, 2),
            "weir seconds, 8,000 locks": _seconds(4, 0),
            "direct seconds, 8,000 locks": _seconds(4, 1),
            "activemq seconds, 8,000 locks": _seconds(4, 2),
            "times the better, 1,000 locks": Figure("rounds.0.times_best"),
            "times the better, 8,000 locks": Figure("rounds.4.times_best"),
        },
        Goal("weir recorded", "=", 1),
        Goal("times the better, 1,000 locks", "≥", 0.99),
        Goal("times the better, 8,000 locks", "≥", 1),
    ),
)
