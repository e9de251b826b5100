"""From a token store to the batches of central training: units, who is drawn, and what chunks hold."""
