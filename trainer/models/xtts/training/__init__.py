"""What training XTTS v2 needs: features to losses."""
