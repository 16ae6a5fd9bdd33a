"""What is answered, one method for each address."""
