"""Relatives of softmax attention: linear attention, the delta rule, and modern Hopfield networks."""
