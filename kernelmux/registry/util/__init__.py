"""What knows no operator: files, hashes of sources, tables and pages, cards, the user's folder, torch's modes."""
