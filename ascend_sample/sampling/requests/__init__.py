"""What a request may ask, each field declared once, and how other engines spell it."""
