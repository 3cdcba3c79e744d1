"""What Home and the list of experiments show, as pictures and sentences."""
