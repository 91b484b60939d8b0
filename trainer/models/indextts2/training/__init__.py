"""What training IndexTTS-2 needs: features to losses."""
