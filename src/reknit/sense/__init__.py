"""Raw evidence in, signals out. Bytes and times come from the shells; nothing here reads a file or a clock."""
