"""Keys of records: what a variant launches (`launches`) and what its operator means (`meaning`), however it is spelt."""
