"""Settings: Java properties files, and a broker's configuration made of them."""
