"""Read files of people and of judges, whatever program wrote them, into samples."""
