"""Who is let in, what they may do, and what ends when that is taken from them."""
