"""Values: checks of arguments, nests of values, text and bytes made of them.

checks          checks of the arguments of public functions
nested          structures of dicts, tuples and lists
own_attributes  attributes of one object
class_cache     caches of facts about classes
signatures      parameters of functions
id_ranges       ids as text, in ranges; nodes as text
json_text       JSON for people and programs
pickling        pickles that contain what only the program's main module has
"""
