"""The DB manager: observation logs by gRPC and REST, with a page, over SQLite, PostgreSQL or MySQL."""
