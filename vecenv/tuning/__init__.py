"""`vecenv.tune`: find the fastest settings of a vector env for an env, by measurements.

candidates        the settings to try
halving           measures the better half of them again, in longer windows
search            `vecenv.tune`, the function
result, env_code  the table, and the program to paste
"""
