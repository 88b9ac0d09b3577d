"""The devices and threads of a run, and the strategy that spreads it over them."""
