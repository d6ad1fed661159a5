"""Formulas of the papers that nothing but their reproduction needs."""
