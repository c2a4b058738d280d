"""Helpers of the tests: throw-away worlds, servers, runners."""
