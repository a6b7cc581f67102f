"""How one family of APIs tells errors, ends streams and reports usage."""
