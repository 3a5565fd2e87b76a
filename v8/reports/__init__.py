"""What a run shows: leaderboard and pages."""
