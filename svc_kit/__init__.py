"""What every service of Corral needs and none of them owns: errors, identity, servers, settings."""
