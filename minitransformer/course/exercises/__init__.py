"""The exercises, a file for each lesson: `EXERCISES`, in the lesson's order."""
