"""What other projects expect of the classes that ours stand in for, in our words: same calls, same exceptions."""
