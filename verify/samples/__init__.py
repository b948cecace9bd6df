"""Verdicts on samples (CHECKED): layers and networks run on samples and compared with their
convolutions.
"""
