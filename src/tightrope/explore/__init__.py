"""A local page on which noise, batch, length and neighbours are sliders, and epsilon answers."""
