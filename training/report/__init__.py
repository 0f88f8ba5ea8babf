"""From the records of runs to tables, pictures and a verdict: python -m training.report FOLDER."""
