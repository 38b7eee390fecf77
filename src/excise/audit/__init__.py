"""What a report of forgetting measures: the models to compare, and one module for each question."""
