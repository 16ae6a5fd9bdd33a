"""The traces that are open: by names that follow from their content, and with what has been computed of them."""
