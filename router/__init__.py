"""The complexity classifier: features, classifier file, decision, training and evaluation."""
