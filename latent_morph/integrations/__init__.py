"""The classifier behind the base classes of other libraries; each needs its extra."""
