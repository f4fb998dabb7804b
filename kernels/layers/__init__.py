"""What a transformer needs beside attention: layer norm, dropout, matrix products, optimizers."""
