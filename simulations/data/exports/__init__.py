"""Token stores written in the forms that other frameworks read: one module a form."""
