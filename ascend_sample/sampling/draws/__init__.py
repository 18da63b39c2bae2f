"""What a draw is made of: noise, orders, weights, segments. Functions of rows, which know no batch."""
