"""The variants of attention: each file registers the one of its name, see `nn/variant.py`."""
