"""What is published to the audit topic: who did what, and who was refused."""
