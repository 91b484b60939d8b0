"""What training FastSpeech 2 needs: features to losses."""
