"""`vecenv.tune`: find the fastest settings of a vector env for an env, by measurements.

candidates        the settings to try
halving           the better half of them goes on with longer windows
search            `vecenv.tune`, the function
result, env_code  the table, and the program to paste
"""
