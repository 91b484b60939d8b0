"""Start the web page and open it in the browser (`python app.py`)."""

from webui.launch import main

if __name__ == "__main__":
    main()
