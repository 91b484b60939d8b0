"""Timbre's page: python app.py starts it and opens the browser."""

from webui.launch import main

if __name__ == "__main__":
    main()
