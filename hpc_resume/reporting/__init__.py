"""What people see of a run; every word of it is a fold of the journal."""
