"""The command line: what a person asks, and how the answer looks in a terminal.

Modules that hold a command import nothing that draws; what draws is loaded when something is drawn, so that
`reknit` answers quickly. Text that a job, a kernel or a node wrote is never trusted: `render.plain` takes out
what could steer a terminal, and it is always shown as text, never as markup.
"""
