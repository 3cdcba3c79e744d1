"""`parlab mcp`: the API as tools of an agent, with answers of a bounded size and a budget for what it starts"""
