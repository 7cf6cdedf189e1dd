"""The leader's reconcilers, and the page of subscriptions that drives them."""
