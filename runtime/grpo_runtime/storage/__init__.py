"""Files and volumes: writes that are whole or absent, full volumes, where a source lies, downloads from the
Hub.

What the files mean is not here, and nothing here imports a folder that uses them.
"""
