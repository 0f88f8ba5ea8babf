"""What bounds a training, and the lifetime that would change it: python -m training.bounds."""
