"""Programs and expectations of other projects, rewritten: the same calls, results and exceptions."""
