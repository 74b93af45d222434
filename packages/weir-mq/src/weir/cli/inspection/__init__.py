"""The verb `inspect`: what the folder of a stopped node holds."""
