"""What watches a launch on the CPU: the checked mode, and the record that the microscope reads."""
