"""Programs and expectations of other projects, in our words: same calls, same outcomes, same exceptions."""
